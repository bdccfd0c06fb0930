-- What prunes have freed. Binaries of version 2 can work with this schema.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (8, 2);
-- Rows that are older than 400 days, and those of prunes that freed nothing, are deleted by later
-- prunes.
CREATE TABLE prunes (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    ended         INTEGER NOT NULL, -- microseconds since 1970
    took          INTEGER NOT NULL, -- microseconds
    packs         INTEGER NOT NULL, -- deleted
    deleted_bytes INTEGER NOT NULL,
    freed_bytes   INTEGER NOT NULL, -- by which thinned packs became smaller
    copied_bytes  INTEGER NOT NULL,
    snapshots     INTEGER NOT NULL  -- forgotten ones that were removed
);

-- +goose Down
DROP TABLE prunes;
DELETE FROM schema_versions WHERE version = 8;
