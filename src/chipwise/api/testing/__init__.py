"""Tools to test third-party parts: conformance suites, small models, strategies.

Needs pytest and hypothesis."""
