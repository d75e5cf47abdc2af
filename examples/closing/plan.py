"""Creates the subscriptions and schedules. To run it again changes nothing, so run it with each deployment."""

from __future__ import annotations

from shop import app

SHOPS = {"berlin": ("Europe/Berlin", True), "lisbon": ("Europe/Lisbon", False)}

with app:
    shops = app.client.topic("shops")
    shops.subscribe("reports", pattern="*.closed")
    shops.subscribe("reorders", pattern="*.closed", filter={"warehouse": ["yes"]})
    for shop, (timezone, warehouse) in SHOPS.items():
        schedule = app.client.schedule(
            f"close-{shop}",
            topic="shops",
            cron="0 20 * * *",
            timezone=timezone,
            key=f"{shop}.closed",
            headers={"warehouse": "yes" if warehouse else "no"},
            body={"shop": shop},
        )
        print(f"{schedule.name}: next at {schedule.next[0]:%Y-%m-%d %H:%M} UTC")
