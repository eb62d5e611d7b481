# shop/models.py
from django.db import models


class Order(models.Model):
    customer = models.CharField(max_length=100)
    cents = models.IntegerField()
    state = models.CharField(max_length=20, default="open")  # then "paid" or "cancelled"
    receipt = models.CharField(max_length=100, default="")
    ordered_at = models.DateTimeField()


class Entry(models.Model):
    order = models.ForeignKey(Order, models.CASCADE)
    cents = models.IntegerField()


class Product(models.Model):
    number = models.CharField(max_length=20, unique=True)
    cents = models.IntegerField()


class Report(models.Model):
    day = models.DateField(unique=True)
    orders = models.IntegerField()
