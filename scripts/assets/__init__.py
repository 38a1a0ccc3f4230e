"""The parts of make_assets.py."""
