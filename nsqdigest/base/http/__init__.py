"""A small HTTP/1.1 client that posts: `client.Client`, one for each receiver.

`target` and `answer` are pure: what a URL and headers become on the wire, and what bytes mean. `connection` is one
socket, `client` the connections to one receiver, `errors` the ways in which a post can fail. docs/measured/http.md has
the measurement that it was written for.
"""
