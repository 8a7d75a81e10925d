"""The PostgreSQL server of the sink's tests runs the SQL of the documentation, too."""

from __future__ import annotations

from system.postgres.conftest import own_server as own_server
from system.postgres.conftest import place as place
