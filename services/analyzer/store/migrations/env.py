"""What Alembic runs: the migrations, within the transaction of the connection that the analyzer gives."""

from alembic import context

from kernalyse.services.analyzer.store.schema import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
