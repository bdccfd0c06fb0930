-- Versions of pages that are stored as patches. Binaries of version 2 can work with this schema, but
-- not with patches: these are written once schema_versions says that older binaries cannot work with
-- the schema. bctl migrate --finish makes it say so.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (11, 2);
-- The first snapshot of the version of the same page of which the listing is a patch. NULL: the
-- listing needs no other version. That version's is NULL.
ALTER TABLE pages ADD COLUMN base bigint;
ALTER TABLE interrupted_pages ADD COLUMN base bigint;

-- +goose Down
ALTER TABLE interrupted_pages DROP COLUMN base;
ALTER TABLE pages DROP COLUMN base;
DELETE FROM schema_versions WHERE version = 11;
