-- The objects below keys/ that the store must have. Binaries of version 11 can work with this schema: what they put below keys/ is
-- checked as what an interrupted command has put.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (27, 11);
-- The names; empty: it is not known which.
ALTER TABLE repositories ADD COLUMN key_objects json NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE repositories DROP COLUMN key_objects;
DELETE FROM schema_versions WHERE version = 27;
