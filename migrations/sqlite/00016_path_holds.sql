-- Holds on paths. Binaries of version 11 can work with this schema: they see a hold on a path as a
-- hold on all of its shard.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (16, 11);
-- The path keys of the path, of the end of what is below it, and of its directory. All of them or none
-- are NULL.
ALTER TABLE holds ADD COLUMN path_key BLOB NULL;
ALTER TABLE holds ADD COLUMN path_end BLOB NULL;
ALTER TABLE holds ADD COLUMN parent_key BLOB NULL;
ALTER TABLE holds ADD COLUMN login text NOT NULL DEFAULT (''); -- the database's user, in Postgres

-- +goose Down
-- A hold on all of the shard keeps more.
ALTER TABLE holds DROP COLUMN login;
ALTER TABLE holds DROP COLUMN parent_key;
ALTER TABLE holds DROP COLUMN path_end;
ALTER TABLE holds DROP COLUMN path_key;
DELETE FROM schema_versions WHERE version = 16;
