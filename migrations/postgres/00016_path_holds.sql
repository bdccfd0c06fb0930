-- Holds on paths, and the users of the database who added holds. Binaries of version 2 can work with
-- this schema: they see a hold on a path as a hold on all of its shard.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (16, 2);
-- The path keys of the path, of the end of what is below it, and of its directory. All of them or none
-- are NULL.
ALTER TABLE holds ADD COLUMN path_key bytea NULL;
ALTER TABLE holds ADD COLUMN path_end bytea NULL;
ALTER TABLE holds ADD COLUMN parent_key bytea NULL;
ALTER TABLE holds ADD CHECK (num_nulls(path_key, path_end, parent_key) = 3 OR num_nulls(path_key, path_end, parent_key, shard) = 0);
-- As in the log: by is what bctl was told. It is not known of the holds that exist.
ALTER TABLE holds ADD COLUMN login text NOT NULL DEFAULT '';
ALTER TABLE holds ALTER COLUMN login SET DEFAULT session_user;

-- +goose Down
-- A hold on all of the shard keeps more.
ALTER TABLE holds DROP COLUMN login;
ALTER TABLE holds DROP COLUMN parent_key;
ALTER TABLE holds DROP COLUMN path_end;
ALTER TABLE holds DROP COLUMN path_key;
DELETE FROM schema_versions WHERE version = 16;
