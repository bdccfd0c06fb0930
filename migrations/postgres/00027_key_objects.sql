-- The objects below keys/ that the store must have. Binaries of version 2 can work with this schema: what they put below keys/ is
-- checked as what an interrupted command has put.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (27, 2);
-- The names; empty: it is not known which.
ALTER TABLE repositories ADD COLUMN key_objects jsonb NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE repositories DROP COLUMN key_objects;
DELETE FROM schema_versions WHERE version = 27;
