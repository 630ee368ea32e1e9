from django.urls import URLPattern, URLResolver, path

from payouts.views import bank, overview, receipts, returns, verification, wallets

app_name = "payouts"
urlpatterns: list[URLPattern | URLResolver] = [
    path("balance/wallet", wallets.connect_wallet, name="connect_wallet"),
    path("balance/wallet/<uuid:public_id>", wallets.prove_wallet, name="prove_wallet"),
    path("balance/wallet/cancel", wallets.cancel_wallet, name="cancel_wallet"),
    path("balance/return", returns.return_balance, name="return_balance"),
    path("provider/payouts/rail", overview.rail, name="rail"),
    path("provider/payouts/bank", bank.bank, name="bank"),
    path("provider/payouts/bank/cancel", bank.bank_cancel, name="bank_cancel"),
    path("provider/payouts/bank/confirm", bank.bank_confirm, name="bank_confirm"),
    path("balance/returns/<uuid:public_id>", receipts.payout, name="receipt"),
    path("verify/<uuid:public_id>", verification.verification, name="verify"),
]
