"""What the page's server answers: routes, named endpoints, and the checks in front of both."""
