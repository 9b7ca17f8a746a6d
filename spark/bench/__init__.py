"""What reading with Spark costs: rates, and the processor time of broker, Python workers and JVM apart.

For measuring only: nothing else imports this.
"""
