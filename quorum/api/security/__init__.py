"""Who may call what, and what is written about it: rights, passwords, tokens, certificates and the audit log.

`rights` has one table for the methods of all services. The gate and the HTTP port ask for each request.
"""
