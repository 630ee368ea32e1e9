from django.urls import path

from gpunex.accounts import views

app_name = "accounts"
urlpatterns = [
    path("language", views.language, name="language"),
    path("theme", views.theme, name="theme"),
    path("organisation", views.organisation, name="organisation"),
    path("settings", views.settings_page, name="settings"),
    path("notices", views.notices, name="notices"),
]
