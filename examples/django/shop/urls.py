"""One view: POST /orders/7?to=ann@example.com places an order."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path
from django.views.decorators.http import require_POST

from . import tasks

WEEK = 7 * 86400


@require_POST
def place(request: HttpRequest, order: int) -> HttpResponse:
    """Place an order. The tasks are sent once its transaction is committed, and not at all if that fails."""
    to = request.GET["to"]
    with transaction.atomic():
        transaction.on_commit(lambda: tasks.confirm.delay(order, to))
        transaction.on_commit(lambda: tasks.ask_for_review.apply_async((order, to), countdown=WEEK))
    return HttpResponse(f"order {order}\n", status=201)


urlpatterns = [path("orders/<int:order>", place)]
