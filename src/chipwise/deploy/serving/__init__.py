"""Serves one model over HTTP as OpenAI's API does, with a chat page: engines that generate text, and the server."""
