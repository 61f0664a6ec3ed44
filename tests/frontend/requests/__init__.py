"""Tests of the client side of a request's life."""
