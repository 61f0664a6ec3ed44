"""Tests of OpenAI's JSON."""
