from django.urls import URLPattern, URLResolver

app_name = "reliability"
urlpatterns: list[URLPattern | URLResolver] = []
