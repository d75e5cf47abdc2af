"""HTTP: the routes on Starlette and the fast lane for the hot calls."""
