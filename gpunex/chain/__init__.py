"""Solana: RPC client, wallet addresses, USDC transfers, and the development chain of the embedded mode."""
