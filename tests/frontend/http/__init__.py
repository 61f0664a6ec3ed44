"""Tests of OpenAI's API over HTTP, on real servers."""
