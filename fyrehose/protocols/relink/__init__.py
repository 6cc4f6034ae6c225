"""Relink: links that outlive their connections, with acknowledged and transactional channels."""
