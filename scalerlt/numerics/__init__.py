"""Number formats and the layers that compute in them."""
