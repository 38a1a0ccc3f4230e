"""What Tidemill is measured against. Each module does the whole work in a process of its own and
prints one JSON object last, as Tidemill's verbs do.
"""
