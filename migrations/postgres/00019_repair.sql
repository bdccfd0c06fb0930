-- What bctl repair notes. Binaries of version 2 can work with this schema: they do not read files
-- again because of it, and their pruners stop at lists that are lost.

-- +goose Up
SET LOCAL lock_timeout = '5s';
INSERT INTO schema_versions (version, oldest) VALUES (19, 2);
-- A page whose files are read again by the next snapshot: by those that compare with snapshot until
-- or an earlier one.
CREATE TABLE reread_pages (
    shard     bigint NOT NULL,
    page      bigint NOT NULL,
    until     bigint NOT NULL,
    directory uuid   NOT NULL,
    PRIMARY KEY (shard, directory, page)
);
-- A list chunk that the store has lost. What it refers to stays known while pages refer to it.
ALTER TABLE chunk_lists ADD COLUMN lost boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE chunk_lists DROP COLUMN lost;
DROP TABLE reread_pages;
DELETE FROM schema_versions WHERE version = 19;
