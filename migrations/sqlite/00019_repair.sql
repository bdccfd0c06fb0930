-- What bctl repair notes. Binaries of version 11 can work with this schema: they do not read files
-- again because of it, and their pruners stop at lists that are lost.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (19, 11);
-- A page whose files are read again by the next snapshot: by those that compare with snapshot until
-- or an earlier one.
CREATE TABLE reread_pages (
    shard     INTEGER NOT NULL,
    directory TEXT    NOT NULL, -- as UUID
    page      INTEGER NOT NULL,
    until     INTEGER NOT NULL,
    PRIMARY KEY (shard, directory, page)
) STRICT, WITHOUT ROWID;
-- A list chunk that the store has lost. What it refers to stays known while pages refer to it.
ALTER TABLE chunk_lists ADD COLUMN lost INTEGER NOT NULL DEFAULT 0;

-- +goose Down
ALTER TABLE chunk_lists DROP COLUMN lost;
DROP TABLE reread_pages;
DELETE FROM schema_versions WHERE version = 19;
