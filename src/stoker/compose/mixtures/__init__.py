"""Several datasets mixed by weight; which source gives sample n is known for every n."""
