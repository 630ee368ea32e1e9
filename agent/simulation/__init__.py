"""A machine that is not there: simulated cards and a simulated container engine, under the real agent.

Everything above the driver and the engine is the agent's own code. What is simulated says so: in the inventory, in every
benchmark result, and in the first line of every log.
"""
