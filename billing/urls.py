from django.urls import path

from billing.views import balance, deposit_requests, statements

app_name = "billing"
urlpatterns = [
    path("balance", balance.balance, name="balance"),
    path("balance/test-usdc", balance.test_usdc, name="test_usdc"),
    path("balance/requests", deposit_requests.requests, name="deposit_requests"),
    path("balance/requests/<uuid:public_id>", deposit_requests.deposit_request, name="deposit_request"),
    path("balance/requests/<uuid:public_id>/cancel", deposit_requests.cancel, name="cancel_deposit_request"),
    path("balance/requests/<uuid:public_id>/pay", deposit_requests.pay, name="pay_deposit_request"),
    path("statements", statements.statements, name="statements"),
    path("statements/<uuid:public_id>", statements.statement, name="statement"),
    path("statements/<uuid:public_id>/statement.csv", statements.statement_csv, name="statement_csv"),
    path("statements/<uuid:public_id>/statement.pdf", statements.statement_pdf, name="statement_pdf"),
    path("statements/<uuid:public_id>/statement.json", statements.statement_json, name="statement_json"),
]
