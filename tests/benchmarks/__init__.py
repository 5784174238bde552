"""Benchmarks, one command each. Numbers stand in NOTES.md, never in a test."""
