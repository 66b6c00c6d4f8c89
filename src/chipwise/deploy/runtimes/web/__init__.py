"""Measuring in a web page: npm packages, the server of the page, and a headless browser that opens it."""
