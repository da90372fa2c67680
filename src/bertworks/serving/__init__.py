"""Models over HTTP: a batching queue, the server on it, and a client."""
