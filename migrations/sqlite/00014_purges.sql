-- Purges: paths that are removed from snapshots that are kept, and the amended records of these.
-- Binaries of version 11 can work with this schema, but do not delete amended records of forgotten
-- snapshots.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (14, 11);
-- Snapshots whose commit record was amended, or must be.
CREATE TABLE amendments (
    snapshot uuid    NOT NULL PRIMARY KEY,
    sequence INTEGER NOT NULL, -- of the valid record; 0: the one that was written after the commit
    base     uuid    NULL,     -- the snapshot with whose pages the segment was compared; NULL: that of the snapshot
    stale    bool    NOT NULL  -- the record must be amended: the index has changed since it was written
);
-- Purges that are not complete. Nothing of a purge is left here when it is.
CREATE TABLE purges (
    id          uuid    NOT NULL PRIMARY KEY,
    shard       INTEGER NOT NULL,
    path        blob    NOT NULL, -- empty: the index has nothing of it any more
    since       INTEGER NOT NULL, -- the least number of a snapshot from which it is removed
    by          text    NOT NULL,
    reason      text    NOT NULL,
    started     INTEGER NOT NULL, -- microseconds since 1970
    snapshots   INTEGER NOT NULL,
    files       INTEGER NOT NULL,
    directories INTEGER NOT NULL,
    bytes       INTEGER NOT NULL
);
-- The chunks of what was removed, and the objects that had those which nothing else needs.
CREATE TABLE purge_chunks (
    purge uuid NOT NULL,
    chunk blob NOT NULL,
    PRIMARY KEY (purge, chunk)
) WITHOUT ROWID;
CREATE TABLE purge_objects (
    purge    uuid NOT NULL,
    snapshot uuid NOT NULL,
    object   uuid NOT NULL,
    PRIMARY KEY (purge, object)
);

-- +goose Down
DROP TABLE purge_objects;
DROP TABLE purge_chunks;
DROP TABLE purges;
DROP TABLE amendments;
DELETE FROM schema_versions WHERE version = 14;
