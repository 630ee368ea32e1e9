from django.urls import path

from billing import views

app_name = "billing"
urlpatterns = [
    path("balance", views.balance, name="balance"),
    path("balance/test-usdc", views.test_usdc, name="test_usdc"),
]
