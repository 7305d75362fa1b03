"""The page's server: routes, named endpoints, and the checks in front of both."""
