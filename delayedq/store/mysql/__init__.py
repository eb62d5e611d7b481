"""The store on MariaDB and MySQL: a few statements per verb, in one short transaction at READ COMMITTED."""
