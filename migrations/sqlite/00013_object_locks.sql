-- Until when the store keeps objects from being deleted (object lock).

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (13, 11);
-- In microseconds since 1970; 0: it is not known.
ALTER TABLE packs ADD COLUMN locked_until INTEGER NOT NULL DEFAULT 0;
-- Objects that are no packs. The record of a snapshot stands for its segment, too.
CREATE TABLE object_locks (
    name         TEXT    NOT NULL PRIMARY KEY,
    locked_until INTEGER NOT NULL -- in microseconds since 1970
) STRICT;

-- +goose Down
DROP TABLE object_locks;
ALTER TABLE packs DROP COLUMN locked_until;
DELETE FROM schema_versions WHERE version = 13;
