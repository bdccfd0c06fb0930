-- Parity groups. Binaries of version 11 can work with this schema: their pruners delete members of
-- groups, which the next pass of a newer pruner makes again.

-- +goose Up
INSERT INTO schema_versions (version, oldest) VALUES (23, 11);
CREATE TABLE parity_groups (
    id           uuid    NOT NULL PRIMARY KEY,
    state        text    NOT NULL, -- planned, valid or ended
    description  blob    NOT NULL, -- as in parity object 0
    stored_bytes INTEGER NOT NULL  -- of the parity objects
);

-- +goose Down
DROP TABLE parity_groups;
DELETE FROM schema_versions WHERE version = 23;
