from django.urls import path

from billing.views import balance

app_name = "billing"
urlpatterns = [
    path("balance", balance.balance, name="balance"),
    path("balance/test-usdc", balance.test_usdc, name="test_usdc"),
]
