"""Rollout: requests, sampling, K/V caches and the engines that generate."""
