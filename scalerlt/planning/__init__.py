"""A request becomes a plan: overrides and sweep files to cells, checked, identified and frozen. No torch."""
