-- The objects in the store that belong to this index, so that an index that is older than its store
-- is detected. Postgres has no copies in the store. Binaries of version 2 can work with this
-- schema: they ignore what they do not know.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (3, 2);

-- The copies of this file in the store, by their sequence. A row is written before the file is
-- copied, so that each copy contains its own row. Copies without a row here belong to another
-- index, and are not deleted.
CREATE TABLE index_copies (
    sequence INTEGER NOT NULL PRIMARY KEY,
    state    INTEGER NOT NULL -- 1: all parts are in the store; 2: and the index was checked just before; 0: neither
) STRICT;

-- Snapshots that the store has a record of and that this index lacks, because it was restored from
-- an older copy.
CREATE TABLE lost_snapshots (
    id TEXT NOT NULL PRIMARY KEY
) STRICT;

-- +goose Down
DROP TABLE lost_snapshots;
DROP TABLE index_copies;
DELETE FROM schema_versions WHERE version = 3;
