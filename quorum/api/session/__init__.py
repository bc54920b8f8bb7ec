"""A client's session, for any protocol: `ClientSession`, its publishing and consuming sides, and its transactions.

No module here knows a protocol. An adapter calls one method for each request, and sends the outcomes.
"""
