from django.urls import URLPattern, URLResolver

app_name = "marketplace"
urlpatterns: list[URLPattern | URLResolver] = []
