from django.urls import URLPattern, URLResolver, path

from marketplace.views import offers, prices, rentals

app_name = "marketplace"
urlpatterns: list[URLPattern | URLResolver] = [
    path("offers", offers.offers, name="offers"),
    path("offers/<uuid:public_id>", offers.offer, name="offer"),
    path("offers/<uuid:public_id>/check", offers.check, name="check"),
    path("offers/<uuid:public_id>/rent", offers.rent, name="rent"),
    path("rentals", rentals.rental_list, name="rentals"),
    path("rentals/<uuid:public_id>", rentals.rental, name="rental"),
    path("rentals/<uuid:public_id>/live", rentals.live, name="live"),
    path("rentals/<uuid:public_id>/log", rentals.log, name="log"),
    path("rentals/<uuid:public_id>/log.txt", rentals.log_file, name="log_file"),
    path("rentals/<uuid:public_id>/stop", rentals.stop, name="stop"),
    path("prices", prices.prices, name="prices"),
]
