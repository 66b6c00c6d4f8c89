"""Tools for testing third-party extensions: conformance suites, small models, hypothesis strategies.

Needs pytest and hypothesis."""
