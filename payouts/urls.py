from django.urls import URLPattern, URLResolver

app_name = "payouts"
urlpatterns: list[URLPattern | URLResolver] = []
